"""What commands print: rich."""
