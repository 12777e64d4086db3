import { expect, it, test } from 'vitest';

import { countdown, joinLine, onlyHere } from '../../src/machine/join';

it('is one line to paste', () => {
  expect(joinLine('http://host:8888/user/x/gpulayer', 'gl-join-abc')).toBe(
    'gpulayer-worker join http://host:8888/user/x/gpulayer --token gl-join-abc'
  );
});

test.each([
  ['http://localhost:8888/gpulayer', true],
  ['http://127.0.0.1:8888/gpulayer', true],
  ['http://[::1]:8888/gpulayer', true],
  ['https://hub.example.org/user/x/gpulayer', false]
])('%s is reached from here only: %s', (url, here) => {
  expect(onlyHere(url)).toBe(here);
});

test.each([
  [600, '10:00'],
  [64.2, '1:05'],
  [0.4, '0:01'],
  [-5, '0:00']
])('%d seconds are counted as %s', (seconds, text) => {
  expect(countdown(seconds)).toBe(text);
});
