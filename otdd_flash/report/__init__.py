"""Results as HTML pages: one file each, which needs no other."""

from otdd_flash.report.distance import write_report
from otdd_flash.report.page import Card, Column, Page

__all__ = ["Card", "Column", "Page", "write_report"]
