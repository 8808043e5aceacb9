"""A cluster that somebody else schedules, watched: what is seen there becomes a journal like any
other, and everything that looks forward works on it. Nothing here changes the cluster."""
