"""Reading a bundle: which records it holds, and their data, block by block and verified."""
