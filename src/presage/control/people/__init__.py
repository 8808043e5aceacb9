"""Who somebody is and what they may do: accounts, roles, sign-in, tickets, secrets, Unix users.

Must not answer HTTP: the server asks here, and says no in its own words.
"""
