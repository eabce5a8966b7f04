"""The real Prometheus with the committed configuration, only quicker, and what it answers."""

from __future__ import annotations

import math
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx

from grafana.generate import ROOT
from tests.e2e.served import free_port
from tests.programs import find_program

CONFIGURATION = ROOT / "deploy" / "prometheus"
INTERVAL = "500ms"


class Prometheus:
    """Scrapes one address twice a second, as job ``vitrine``."""

    def __init__(self, folder: Path, target: str) -> None:
        program = find_program("prometheus", package="prometheus")
        shutil.copytree(CONFIGURATION, folder / "config")
        file = folder / "config" / "prometheus.yml"
        quick = re.sub(r"(scrape|evaluation)_interval: \w+", rf"\1_interval: {INTERVAL}", file.read_text())
        file.write_text(quick.replace("127.0.0.1:8000", target))
        port = free_port()
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._api = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10)

    def close(self) -> None:
        """End it."""
        self._api.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._log.close()

    def up(self) -> bool:
        """Whether it has scraped its target."""
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            return self.values('up{job="vitrine"}') == [1]
        except httpx.TransportError:
            return False

    def ask(self, path: str, **query: Any) -> Any:
        """The data of an answer; an error that Prometheus reports is an AssertionError with its words."""
        response = self._api.get(path, params=query)
        if response.status_code == 503:  # it is still starting
            return {"result": []}
        body = response.json()
        assert body["status"] == "success", f"{query}: {body.get('error')}"
        return body["data"]

    def values(self, expression: str) -> list[float]:
        """Values of the expression's series now, those aside that are no number."""
        found = [float(series["value"][1]) for series in self.ask("/query", query=expression)["result"]]
        return [value for value in found if not math.isnan(value)]
