"""What a job is doing while it runs."""
