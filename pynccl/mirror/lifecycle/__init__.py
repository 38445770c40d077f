"""How groups are made and destroyed."""
