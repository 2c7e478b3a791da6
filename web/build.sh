#!/usr/bin/env bash
# Builds the page into web/dist when its sources are newer. Without a fit Node it says so
# and leaves dist as it is: the server then tells how to build the page. DROVER_WEB=skip
# leaves the page out, DROVER_WEB=need makes a missing page an error.
set -euo pipefail
cd "$(dirname "$0")"

without() {
  echo "page: $1" >&2
  if [ "${DROVER_WEB:-}" = need ]; then exit 1; fi
  exit 0
}

[ "${DROVER_WEB:-}" != skip ] || without "left out (DROVER_WEB=skip)"
command -v node >/dev/null && command -v npm >/dev/null ||
  without "not built, there's no Node.js; everything else works. Install Node.js 20.19 or newer for it"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 22 || (a === 22 && b >= 12) || (a === 20 && b >= 19) ? 0 : 1)' ||
  without "not built, Node.js $(node --version) is too old; 20.19, 22.12 or newer is needed"

if [ -f dist/index.html ] && [ -z "$(find src public index.html package-lock.json vite.config.ts -newer dist/index.html -print -quit)" ]; then
  exit 0
fi
if [ ! -f node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
  npm ci --silent || without "not built, npm ci failed (see above); everything else works"
  touch node_modules/.package-lock.json
fi
npm run --silent build -- --logLevel warn || without "not built, see above"
echo "page: built"
