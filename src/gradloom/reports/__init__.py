"""Reports: self-contained HTML pages with figures, such as the memory map of a plan."""
