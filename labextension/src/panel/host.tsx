import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IFramework, IInventory, ISample } from '../api/types';
import { part, percent, size } from '../words';

/** The libraries that were looked for: on what each was seen to compute, or why it can't. */
export function Frameworks(props: {
  inventory: IInventory;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { inventory, trans } = props;
  if (inventory.frameworks.length === 0 && inventory.probing.length === 0) {
    return null;
  }
  const accelerators = new Set(inventory.devices.map(device => device.kind));
  return (
    <div className="gpulayer-Frameworks">
      {inventory.frameworks.map(framework => (
        <Framework
          key={framework.name}
          framework={framework}
          accelerators={accelerators}
          trans={trans}
        />
      ))}
      {inventory.probing.map(name => (
        <span key={name} className="gpulayer-Muted" title={trans.__('It is being tried out.')}>
          {name} …
        </span>
      ))}
    </div>
  );
}

function Framework(props: {
  framework: IFramework;
  accelerators: ReadonlySet<string>;
  trans: TranslationBundle;
}): JSX.Element {
  const { framework, accelerators, trans } = props;
  const on = framework.works.filter(kind => accelerators.has(kind));
  const kinds = on.length > 0 ? on : framework.works;
  const problems = Object.entries(framework.problems)
    .map(([kind, text]) => (kind ? `${kind}: ${text}` : text))
    .join('\n');
  const short = framework.version.split('+')[0];
  return (
    <span
      className="gpulayer-Framework"
      data-framework={framework.name}
      data-works={kinds.length > 0}
      title={problems || trans.__('It computed what it should.')}
    >
      {`${framework.name} ${short} ${kinds.length > 0 ? `${kinds.join(' ')} ✓` : '✗'}`}
    </span>
  );
}

/** How the machine itself fares. */
export function Host(props: {
  sample: ISample;
  inventory: IInventory;
  trans: TranslationBundle;
}): JSX.Element {
  const { sample, inventory, trans } = props;
  const figures: [string, string][] = [];
  if (sample.cpu !== null) {
    figures.push([trans.__('CPU'), percent(sample.cpu)]);
  }
  if (sample.ram_used_bytes !== null && inventory.ram_bytes) {
    figures.push([trans.__('RAM'), part(sample.ram_used_bytes, inventory.ram_bytes)]);
  }
  if (sample.disk_free_bytes !== null) {
    figures.push([trans.__('disk'), `${size(sample.disk_free_bytes)} ${trans.__('free')}`]);
  }
  if (sample.received_bps !== null && sample.sent_bps !== null) {
    figures.push([
      trans.__('net'),
      `↓ ${size(sample.received_bps)}/s ↑ ${size(sample.sent_bps)}/s`
    ]);
  }
  return (
    <div className="gpulayer-Host">
      {figures.map(([what, figure]) => (
        <span key={what} className="gpulayer-Figures">
          <span className="gpulayer-Host-what">{what}</span> {figure}
        </span>
      ))}
    </div>
  );
}
