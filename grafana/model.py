"""Grafana's JSON of a dashboard (the classic model, schema version 42: Grafana 12 and later; older ones read it too).

Source: Grafana's documentation, "Dashboard JSON model".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grafana.panels import Dashboard, Panel, Row, Target
from telemetry.metric_table import BY_NAME

Json = dict[str, Any]

SCHEMA_VERSION = 42
_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_FIRING = 'ALERTS{alertname=~"Vitrine.+",alertstate="firing"}'


def dashboard(page: Dashboard, all_uids: dict[str, str]) -> Json:
    """A page's JSON. `all_uids` are the titles and uids of all pages, which link to each other."""
    return {
        "uid": page.uid,
        "title": page.title,
        "description": page.description,
        "tags": ["vitrine"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_alerts()]},
        "links": [_link(title, uid) for title, uid in all_uids.items() if uid != page.uid],
        "templating": {"list": _variables()},
        "panels": _panels(page),
    }


def _alerts() -> Json:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "expr": _FIRING,
        "iconColor": "red",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{model}} {{replica}}",
    }


def _link(title: str, uid: str) -> Json:
    return {
        "title": title,
        "type": "link",
        "url": f"/d/{uid}",
        "keepTime": True,
        "includeVars": True,
        "icon": "dashboard",
    }


def _variables() -> list[Json]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    return [
        source,
        _variable("model", "label_values(vitrine_replicas, model)"),
        _variable("replica", 'label_values(vitrine_requests_running{model=~"$model"}, replica)'),
    ]


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Processes that belong to no replica have an empty label, which only this finds.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(page: Dashboard) -> list[Json]:
    made: list[Json] = []
    y = 0
    for row in page.rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": _place(0, y, _COLUMNS, 1),
            }
        )
        for panel, x, top in _flow(row, y + 1):
            made.append({"id": len(made) + 1, **_panel(panel), "gridPos": _place(x, top, panel.width, panel.height)})
            y = max(y, top + panel.height)
    return made


def _flow(row: Row, y: int) -> Iterator[tuple[Panel, int, int]]:
    """(panel, x, y) from left to right; a panel that does not fit begins a new line."""
    x, tallest = 0, 0
    for panel in row.panels:
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        yield panel, x, y
        x, tallest = x + panel.width, max(tallest, panel.height)


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": description(panel),
        "datasource": _SOURCE,
        "targets": [_target(panel, number, target) for number, target in enumerate(panel.targets)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        **({"transformations": [_LABELS_ONLY]} if panel.kind == "table" else {}),
    }


_LABELS_ONLY = {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}


def description(panel: Panel) -> str:
    """What the metric table says of the panel's metrics, and the panel's note."""
    names = dict.fromkeys(name for target in panel.targets for name in target.expr.metrics)
    return " ".join([*(BY_NAME[name].help for name in names), panel.note]).strip()


def _target(panel: Panel, number: int, target: Target) -> Json:
    now = panel.kind in ("stat", "table")
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": target.expr.text,
        "legendFormat": target.legend or panel.title,
        "range": not now,
        "instant": now,
        "exemplar": "histogram_quantile" in target.expr.text and not now,
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
    }


def _defaults(panel: Panel) -> Json:
    thresholds: list[Json] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        thresholds.append({"color": "red", "value": panel.limit})
    shown: Json = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": thresholds}}
    if panel.top is not None:
        shown["max"] = panel.top
    if panel.kind == "timeseries":
        shown["custom"] = _drawing(panel)
    return shown


def _drawing(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1 if panel.stacked else 2,
        "fillOpacity": 40 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if panel.limit is None else "dashed"},
    }


def _overrides(panel: Panel) -> list[Json]:
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in panel.colours.items()
    ]


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"graphMode": "none", "colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": panel.unit}, "color": {"scheme": "Blues", "mode": "scheme"}}
    if panel.kind == "table":
        return {"showHeader": True}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
