"""Results as HTML pages: one file each, which needs no other."""

from otdd_flash.report.flow import flow_page
from otdd_flash.report.page import Card, Column, Page
from otdd_flash.report.writing import write_report

__all__ = ["Card", "Column", "Page", "flow_page", "write_report"]
