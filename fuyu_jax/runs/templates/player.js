"use strict";
// The episode player. Everything from an episode enters the page as text: no markup is ever made of it.
(() => {
  const episodes = JSON.parse(document.getElementById("episodes").textContent);
  const part = (name) => document.getElementById(`player-${name}`);
  const filter = part("filter"), task = part("task"), range = part("range"), stage = part("stage");
  let step = 0;

  const element = (name, options = {}, ...children) => {
    const made = document.createElement(name);
    if (options.class) made.className = options.class;
    if (options.scope) made.scope = options.scope;
    made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return made;
  };
  const titled = (title, ...children) => element("div", {}, element("h3", {}, title), ...children);
  const percent = (share) => {
    const value = 100 * share;
    return value > 0 && value < 0.1 ? "< 0.1 %" : `${value.toFixed(1)} %`;
  };
  const verdict = (right) => element("span", { class: right ? "good" : "bad" }, right ? "✓ right" : "✗ wrong");
  const show = (value) => {
    if (value === null || value === undefined) return "nothing";
    return Array.isArray(value) ? `[${value.join(", ")}]` : String(value);
  };
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const withStatus = (value, status) => (status === "OK" ? show(value) : `fault: ${status}`);

  const expected = (echo) => {
    if (echo.status !== "OK") return `fault: ${echo.status}`;
    const words = echo.words.slice(0, echo.length);
    if (echo.type === "LIST") return show(words);
    if (echo.type === "EMPTY") return "nothing";
    if (echo.length !== 1) return `${echo.type} of ${echo.length} words ${show(words)}`;
    return echo.type === "BOOL" ? show(words[0] !== 0) : show(words[0]);
  };

  const grid = (kind, heads, rows) => {
    const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, name)));
    const table = element("table", { class: kind }, element("thead", {}, head), element("tbody", {}, ...rows));
    const region = element("div", { class: "scroll" }, table);
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `${heads[0]} and ${heads[heads.length - 1]}`);
    return region;
  };

  const listing = (now, before) => {
    const changed = new Map((before?.changed ?? []).map((change) => [change.slot, change]));
    const next = new Set((now.changed ?? []).map((change) => change.slot));
    const lines = now.program.map((instruction, slot) => {
      const line = element("li", {}, element("span", { class: "slot" }, slot));
      line.append(element("span", { class: instruction === "NOP" ? "blank" : "" }, instruction));
      if (changed.has(slot)) {
        line.classList.add("changed");
        line.append(element("span", { class: "was" }, `changed, was ${changed.get(slot).before}`));
      }
      if (next.has(slot)) {
        line.classList.add("next");
        line.append(element("span", { class: "was" }, "edited next"));
      }
      return line;
    });
    return element("ol", { class: "listing" }, ...lines);
  };

  const outputs = (episode, now, before) => {
    const predicted = before?.echo ?? [];
    const rows = episode.examples.map((example, number) => {
      const right = now.status[number] === "OK" && same(now.outputs[number], example.target);
      const cells = [
        ...example.inputs.map(show).concat(example.inputs.length < 2 ? [""] : []),
        show(example.target),
        withStatus(now.outputs[number], now.status[number]),
        verdict(right),
      ];
      if (predicted.length) {
        const echo = predicted[number];
        cells.push(element("span", {}, `${expected(echo)} `, verdict(echo.right)));
      }
      return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
    });
    const heads = ["input x", "input y", "target", "output", "right?"];
    return grid("outputs", predicted.length ? [...heads, "ECHO expected this output"] : heads, rows);
  };

  const edits = (now) => {
    const rows = now.top_edits.map((edit) => {
      const bar = element("div", { class: "bar" });
      bar.style.width = `${Math.min(100, 100 * edit.probability)}%`;
      const share = element("td", { class: "share" }, bar, element("span", {}, percent(edit.probability)));
      const taken = now.decision === "edit" && edit.action === now.action;
      const name = element("td", {}, edit.edit + (taken ? " (taken)" : ""));
      return element("tr", { class: taken ? "taken" : "" }, name, share);
    });
    return grid("edits", ["likeliest edits", "probability"], rows);
  };

  const facts = (pairs) =>
    element("dl", { class: "facts" }, ...pairs.flatMap(([k, v]) => [element("dt", {}, k), element("dd", {}, v)]));

  const decision = (now) => {
    if (now.decision === "none") return titled("Decision", element("p", {}, "The budget is spent: no decision."));
    const does = now.decision === "stop" ? "STOP" : now.edit + (now.valid ? "" : " (changes nothing)");
    return titled(
      "Decision",
      facts([
        ["does", does],
        ["P(STOP)", percent(now.stop_prob)],
        ["value", `${percent(now.value)} to end solved`],
        ["distance", `${now.distance.toFixed(1)} edits to go, it thinks`],
      ]),
      edits(now),
    );
  };

  const outcome = (episode) => {
    const how = episode.end === "stop" ? "stopped" : "ran out of budget";
    return `${episode.solved ? "solved" : "not solved"}, ${how} after ${episode.edits} edits`;
  };

  // A button that does nothing now says so but keeps the focus.
  const able = (back, forward) => {
    for (const name of ["first", "back"]) part(name).setAttribute("aria-disabled", !back);
    for (const name of ["last", "forward"]) part(name).setAttribute("aria-disabled", !forward);
  };

  const draw = () => {
    const episode = episodes[task.value];
    if (!episode) {
      stage.replaceChildren(element("p", {}, "No episode is like that."));
      part("where").textContent = "";
      able(false, false);
      return;
    }
    const last = episode.steps.length - 1;
    step = Math.max(0, Math.min(step, last));
    const now = episode.steps[step], before = episode.steps[step - 1];
    range.max = last;
    range.value = step;
    able(step > 0, step < last);
    const right = `${now.public_right} of ${episode.examples.length} public examples right`;
    const state = now.solved ? "the task is solved" : "the task is not solved";
    part("where").textContent = `Step ${step} of ${last}: ${right}; ${state}.`;
    stage.replaceChildren(
      titled("Prompt", element("p", { class: "prompt" }, episode.prompt)),
      element(
        "div",
        { class: "panels" },
        titled("Program", listing(now, before), element("p", { class: "quiet" }, `Reference: ${episode.reference}`)),
        decision(now),
        element("div", { class: "whole" }, element("h3", {}, "Public examples"), outputs(episode, now, before)),
        element(
          "p",
          { class: "quiet whole" },
          `${episode.phase}, ${episode.split}, task ${episode.task}, ${episode.family}, K=${episode.budget}, ` +
            `${episode.mode} mode: ${episode.start_solved ? "solved" : "not solved"} at the start, ${outcome(episode)}.`,
        ),
      ),
    );
  };

  const filters = [
    ["all", () => true],
    ["solved by the policy", (episode) => episode.solved && !episode.start_solved],
    ["not solved", (episode) => !episode.solved],
    ["stopped unsolved", (episode) => !episode.solved && episode.end === "stop"],
    ["solved at the start", (episode) => episode.start_solved],
    ...[...new Set(episodes.map((episode) => episode.split))].map((split) => [split, (one) => one.split === split]),
  ];
  const option = (value, text) => {
    const made = element("option", {}, text);
    made.value = value;
    return made;
  };
  const list = () => {
    const wanted = filters[filter.value][1];
    const names = episodes.flatMap((episode, number) => {
      if (!wanted(episode)) return [];
      const words = `${episode.split} ${episode.task} (${episode.solved ? "solved" : "not solved"}): ${episode.prompt}`;
      return [option(number, words)];
    });
    task.replaceChildren(...names);
    step = 0;
    draw();
  };
  const move = (to) => {
    step = to;
    draw();
  };

  filter.append(...filters.map(([name, test], number) => option(number, `${name} (${episodes.filter(test).length})`)));
  filter.addEventListener("change", list);
  task.addEventListener("change", () => move(0));
  range.addEventListener("input", () => move(Number(range.value)));
  part("first").addEventListener("click", () => move(0));
  part("back").addEventListener("click", () => move(step - 1));
  part("forward").addEventListener("click", () => move(step + 1));
  part("last").addEventListener("click", () => move(Infinity));
  document.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (!(event.key in moves) || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest("select, input, .scroll, pre")) return; // there the arrows mean something else
    event.preventDefault();
    move(step + moves[event.key]);
  });
  list();
})();
