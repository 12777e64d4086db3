import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.{ts,tsx}'],
    environment: 'node',
    setupFiles: ['test/dom.ts'],
    testTimeout: 30_000,
    server: { deps: { inline: [/@jupyterlab/, /@jupyter\//] } }
  }
});
