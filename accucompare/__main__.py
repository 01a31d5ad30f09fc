"""``python -m accucompare``."""

from accucompare.cli import main

if __name__ == "__main__":
    main()
