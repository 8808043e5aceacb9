"""What users are told: the answers of the API as values that become JSON. Reads the parts of a
running server; decides nothing and knows no HTTP."""
