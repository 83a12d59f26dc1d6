// Bundles the page into the Python package: index.html and assets/ with hashed names.
import { build } from "esbuild";
import { copyFile, readFile, rm, writeFile } from "node:fs/promises";
import { basename } from "node:path";

const out = "../src/sacmil/viewer/static";

await rm(out, { recursive: true, force: true });
const { metafile } = await build({
  entryPoints: ["src/main.ts", "src/page.css"],
  outdir: `${out}/assets`,
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "eof",
  metafile: true,
});
const built = Object.keys(metafile.outputs).map((path) => basename(path));
const page = (await readFile("index.html", "utf8"))
  .replace("src/main.ts", `assets/${built.find((name) => name.endsWith(".js"))}`)
  .replace("src/page.css", `assets/${built.find((name) => name.endsWith(".css"))}`);
await copyFile("node_modules/openseadragon/LICENSE.txt", `${out}/assets/openseadragon.LICENSE.txt`);
// the page last: while it is missing, the server reports that the page is not built
await writeFile(`${out}/index.html`, page);
