"""Run the command line as ``python -m otdd_flash``."""

from otdd_flash.cli import main

if __name__ == "__main__":
    main(prog_name="otdd")
