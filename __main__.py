"""``python -m splitarrow`` is the command ``splitarrow``."""

from .cli import main

if __name__ == "__main__":
    main()
