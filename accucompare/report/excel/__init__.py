"""The workbooks: openpyxl."""
