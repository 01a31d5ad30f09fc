"""What a report shows, as data: columns, sheets, charts, looks."""
