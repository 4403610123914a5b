// Prints the pages that the search of the built documentation finds for each query, best first.
// Usage: node search.mjs SITE QUERY…. It runs the script that browsers run in a worker.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const workers = join(site, "assets", "javascripts", "workers");
const script = readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
const index = JSON.parse(readFileSync(join(site, "search", "search_index.json"), "utf8"));

let receive, answer;
const scope = {
  addEventListener: (_, listener) => (receive = listener),
  postMessage: (message) => answer(message),
  console,
};
scope.self = scope;
vm.runInNewContext(readFileSync(join(workers, script), "utf8"), scope);

const send = (type, data) =>
  new Promise((resolve) => {
    answer = resolve;
    receive({ data: { type, data } });
  });

await send(0, { ...index, options: { suggest: false } });
const pages = {};
for (const query of queries) {
  const { data } = await send(2, query);
  pages[query] = data.items.map(([first]) => first.location.split("#")[0]);
}
console.log(JSON.stringify(pages));
