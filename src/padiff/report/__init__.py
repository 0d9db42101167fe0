"""One outcome, several renderings."""

from padiff.report.html import to_html as to_html
from padiff.report.json import load as load
from padiff.report.json import to_json as to_json
from padiff.report.junit import to_junit as to_junit
from padiff.report.make import report_of as report_of
from padiff.report.markdown import to_markdown as to_markdown
from padiff.report.picture import picture_of as picture_of
from padiff.report.record import Report as Report
from padiff.report.save import save as save
from padiff.report.terminal import render as render
from padiff.report.terminal import show as show
