/* The overview's charts: uPlot over the columns of /api/overview, kept up to date by the event stream. */
"use strict";

(() => {
  const grid = document.getElementById("charts");
  if (!grid) return;
  const seconds = Number(grid.dataset.seconds);
  const plots = [...grid.querySelectorAll(".plot")];
  let columns = null; // {ts: [...], <line>: [...]}
  let charts = [];

  const colour = (name, element = document.body) => getComputedStyle(element).getPropertyValue(name).trim();

  const FORMATS = {
    duration: (v) => (v >= 1 ? `${+v.toPrecision(3)} s` : v >= 1e-3 ? `${+(v * 1e3).toPrecision(3)} ms` : v > 0 ? `${Math.round(v * 1e6)} µs` : "0"),
    count: (v) => (v >= 10000 ? `${+(v / 1000).toPrecision(3)}k` : Number.isInteger(v) ? String(v) : v.toFixed(1)),
    percent: (v) => `${Math.round(v * 100)} %`,
  };

  function lines(plot) {
    return plot.dataset.lines.split(";").map((text) => {
      const [key, label, css] = text.split("|");
      return { key, label, css };
    });
  }

  // The colour classes of the style sheet say the colour; a swatch of the legend carries it.
  function strokeOf(plot, line) {
    const swatch = plot.parentElement.querySelector(`.swatch.${line.css}`) ?? plot;
    return colour("--c", swatch) || colour("--quiet");
  }

  // Stacked charts draw running sums, the last line first, so that each area shows below the next.
  function dataOf(plot) {
    const own = lines(plot).map((line) => columns[line.key]);
    if (plot.dataset.stacked !== "1") return [columns.ts, ...own];
    const sums = [];
    own.forEach((values, i) => {
      sums.push(values.map((value, j) => (value === null ? null : value + (i ? sums[i - 1][j] ?? 0 : 0))));
    });
    return [columns.ts, ...sums.reverse()];
  }

  function seriesOf(plot) {
    const stacked = plot.dataset.stacked === "1";
    const all = lines(plot).map((line, i) => {
      const stroke = strokeOf(plot, line);
      return { label: line.label, stroke, width: stacked ? 1 : 1.75, fill: stacked ? stroke : i ? undefined : `${stroke}18`, points: { show: false }, spanGaps: false };
    });
    return [{}, ...(stacked ? all.reverse() : all)];
  }

  function axis(format) {
    const base = { stroke: colour("--ink-3"), font: `11px ${colour("--sans")}`, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const clock = (ts) => new Date(ts * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
    return [
      { ...base, space: 70, size: 26, grid: { show: false }, values: (_, marks) => marks.map(clock) },
      { ...base, space: 34, size: 54, values: (_, marks) => marks.map((v) => (v === null ? "" : format(v))) },
    ];
  }

  function readout(plot, format) {
    const box = document.createElement("div");
    box.className = "readout";
    box.hidden = true;
    plot.append(box);
    return (chart) => {
      const i = chart.cursor.idx;
      box.hidden = i === null || i === undefined || chart.cursor.left < 0;
      if (box.hidden) return;
      const stacked = plot.dataset.stacked === "1";
      const values = lines(plot).map((line) => [line.label, columns[line.key][i]]).filter(([, v]) => v !== null && (v || !stacked));
      box.textContent = `${new Date(columns.ts[i] * 1000).toLocaleTimeString([], { hour12: false })} · ${values.map(([label, v]) => `${label} ${format(v)}`).join(" · ")}`;
    };
  }

  function draw(plot) {
    const format = FORMATS[plot.dataset.unit];
    plot.replaceChildren();
    if (!columns.ts.length) {
      const empty = document.createElement("p");
      empty.className = "waiting";
      empty.textContent = "no samples in this window yet";
      plot.append(empty);
      return null;
    }
    return new uPlot({
      width: plot.clientWidth,
      height: plot.clientHeight,
      legend: { show: false },
      cursor: { sync: { key: "overview" }, y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { range: () => [Date.now() / 1000 - seconds, Date.now() / 1000] },
        y: { range: (_, low, high) => (plot.dataset.unit === "percent" ? [0, 1] : [0, Math.max(high * 1.08, plot.dataset.unit === "duration" ? 1e-3 : 4)]) },
      },
      axes: axis(format),
      series: seriesOf(plot),
      hooks: { setCursor: [readout(plot, format)] },
    }, dataOf(plot), plot);
  }

  function drawAll() {
    charts.forEach((chart) => chart?.destroy());
    charts = plots.map(draw);
  }

  async function load() {
    const answer = await fetch(`/api/overview?window=${encodeURIComponent(grid.dataset.window)}`);
    if (!answer.ok) return;
    columns = (await answer.json()).series;
    drawAll();
  }

  // New points replace those of the same time, and the oldest leave the window.
  function merge(news) {
    if (!columns || !news.ts.length) return;
    const kept = columns.ts.filter((ts) => ts < news.ts[0]).length;
    const from = columns.ts.findIndex((ts) => ts >= Date.now() / 1000 - seconds);
    for (const key of Object.keys(columns)) {
      columns[key] = columns[key].slice(Math.max(0, from), kept).concat(news[key]);
    }
  }

  function redraw() {
    if (window.vitrine.paused || !columns) return;
    if (charts.includes(null)) drawAll();
    else charts.forEach((chart, i) => chart.setData(dataOf(plots[i])));
  }

  document.addEventListener("vitrine:points", (event) => { merge(event.detail); redraw(); });
  document.addEventListener("vitrine:pause", redraw);
  document.addEventListener("vitrine:reconnected", load);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (columns) drawAll(); });
  new ResizeObserver(() => charts.forEach((chart, i) => chart?.setSize({ width: plots[i].clientWidth, height: plots[i].clientHeight }))).observe(grid);
  load();
})();
