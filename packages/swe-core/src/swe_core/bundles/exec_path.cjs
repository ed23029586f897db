// Loaded first by bin/node of a bundle. node takes the loader for its own executable, and programs start that again.
process.execPath = process.argv[0] = require("node:path").resolve(__dirname, "../../bin/node");
if (process.execArgv[0] === "--require" && process.execArgv[1]?.endsWith("/exec_path.cjs")) process.execArgv.splice(0, 2);
