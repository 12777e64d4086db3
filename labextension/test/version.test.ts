import { readFileSync } from 'node:fs';

import { expect, it } from 'vitest';

import { VERSION } from '../src/version';

const read = (path: string) => readFileSync(new URL(path, import.meta.url), 'utf8');

it('is that of the Python package', () => {
  expect(read('../../gpulayer/_version.py')).toContain(`__version__ = "${VERSION}"`);
});

it('is in package.json as npm writes it', () => {
  const { version } = JSON.parse(read('../package.json')) as { version: string };
  expect(version.replace('-', '.').replace(/(dev|a|b|rc)\./, '$1')).toBe(VERSION);
});

it('comes with a lock file that names no address of a registry', () => {
  expect(read('../package-lock.json')).not.toMatch(/"resolved"|registry\./);
});
