import { LabIcon } from '@jupyterlab/ui-components';

/** Three layers. */
const SVG =
  '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">' +
  '<g class="jp-icon3" fill="#616161"><path d="M8 1 15 4.5 8 8 1 4.5z"/>' +
  '<path d="m2.6 7.2 5.4 2.7 5.4-2.7L15 8l-7 3.5L1 8z"/>' +
  '<path d="m2.6 10.7 5.4 2.7 5.4-2.7 1.6.8L8 15 1 11.5z"/></g></svg>';

export const gpulayerIcon = new LabIcon({ name: 'gpulayer:icon', svgstr: SVG });
