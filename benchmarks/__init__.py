"""What padiff costs, measured against the models' own forward and backward."""
