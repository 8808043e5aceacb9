"""Journal and queries: where facts and decisions are kept. Decides nothing."""
