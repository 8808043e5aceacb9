"""One server put together: its configuration file, its settings, its executor, its parts.

Must not decide anything, and opens no port.
"""
