"""The loop, without HTTP: decides turn by turn under a lease, takes requests, keeps what users
see, and runs the advisors beside it. Nothing here knows of routes or tokens."""
