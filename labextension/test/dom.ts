/** What JupyterLab's modules want at import and jsdom lacks. */
if (typeof window !== 'undefined') {
  const media = { matches: false, addListener: () => undefined, addEventListener: () => undefined };
  const lacking = { DragEvent: class extends MouseEvent {}, matchMedia: () => media };
  for (const [name, value] of Object.entries(lacking)) {
    Object.defineProperty(window, name, { value, configurable: true, writable: true });
  }
}
