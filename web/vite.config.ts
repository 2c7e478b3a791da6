import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// The development server forwards the API to a running drover serve.
const backend = process.env.DROVER_URL ?? "http://127.0.0.1:7400";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: { target: "es2022", sourcemap: false, assetsInlineLimit: 0 },
  server: { proxy: { "/api": backend } },
  test: { environment: "happy-dom", include: ["src/**/*.test.{ts,tsx}"] },
});
