"""What tests of Presage and of its plugins share: random clusters, jobs and policies, and a state
machine that drives them. Nothing that runs imports it; it needs the extra `dev`."""
