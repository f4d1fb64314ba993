"use strict";
// Tables that sort: each heading becomes a button; a third press brings the first order back.
(() => {
  // The number that a cell begins with ("12.5 % (9 to 16)", "+3.1", "1,234"), or null where it begins with none.
  const leadingNumber = (text) => {
    const found = /^[+-]?(\d[\d,]*)?(\.\d+)?(e[+-]?\d+)?/i.exec(text.trim());
    const number = found[0] === "" ? NaN : Number(found[0].replaceAll(",", ""));
    return Number.isNaN(number) ? null : number;
  };

  const sortBy = (body, rows, column, order) => {
    const keyed = rows.map((row, place) => ({ row, place, text: row.cells[column].textContent.trim() }));
    if (order !== "none") {
      const filled = keyed.filter((item) => item.text !== "");
      const numeric = filled.every((item) => leadingNumber(item.text) !== null);
      const sign = order === "ascending" ? 1 : -1;
      const compare = (a, b) =>
        numeric ? leadingNumber(a.text) - leadingNumber(b.text) : a.text.localeCompare(b.text);
      keyed.sort((a, b) => {
        if (a.text === "" || b.text === "") return (a.text === "") - (b.text === "") || a.place - b.place;
        return sign * compare(a, b) || a.place - b.place;
      });
    }
    body.append(...keyed.map((item) => item.row));
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" };
        const order = next[head.getAttribute("aria-sort")];
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order);
        sortBy(body, rows, column, order);
      });
    });
  }
})();
