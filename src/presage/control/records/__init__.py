"""What runs leave and how long it stays: results, use by day, backups, where metrics go besides.

Must not change what is decided.
"""
