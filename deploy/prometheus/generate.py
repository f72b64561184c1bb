"""Write the files made from the rules and docs/monitoring.md; with --check compare instead.

consoles/moca-alerts.html: the runbook, which Prometheus itself shows at /consoles/.
deploy/kubernetes/components/monitoring/rules.yaml: the rules for the Prometheus Operator.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from textwrap import indent

import markdown

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNBOOK = HERE / "consoles" / "moca-alerts.html"
MANIFEST = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "rules.yaml"
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>moca-service: alerts</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }}
code, pre {{ background: #eee8; border-radius: 3px; padding: 0 .2em }}
:target {{ background: #fe08 }}
</style>
{content}
</html>
"""
HEAD = """# Made of deploy/prometheus/rules by deploy/prometheus/generate.py.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: moca
spec:
  groups:
"""


def runbook() -> str:
    """Return the section on alerts as a page. Prometheus serves no other documentation."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    source = page[page.index("\n## Alerts\n") :].replace("\n## Alerts\n", "\n# Alerts\n", 1)
    bare = re.sub(r"\[([^\]]+)\]\((?!#|https?:)[^)]*\)", r"\1", source)
    content = markdown.markdown(bare, extensions=["fenced_code", "tables", "toc"])
    # Prometheus takes the page for a template, and would evaluate what is in double braces.
    return PAGE.format(content=content.replace("{{", "&#123;{"))


def manifest() -> str:
    """Return the rules as one PrometheusRule, with their comments."""
    files = (HERE / "rules" / name for name in ("recording.yml", "alerts.yml"))
    groups = (file.read_text().partition("\ngroups:\n")[2] for file in files)
    return HEAD + "\n".join(indent(each, "  ") for each in groups)


def main(arguments: list[str] | None = None) -> int:
    """Return 0; with --check 1 where a file is not what would be written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(arguments).check
    outdated = []
    for path, text in ((RUNBOOK, runbook()), (MANIFEST, manifest())):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            outdated.append(path)
    for path in outdated:
        print(f"{path.name} is outdated: run deploy/prometheus/generate.py", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
