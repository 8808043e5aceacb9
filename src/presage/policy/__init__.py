"""How to choose: small functions, one idea each, composed into a policy by configuration."""
