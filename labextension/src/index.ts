import { attachPlugin } from './attach/plugin';
import { clientPlugin, jobPlugin, panelPlugin } from './plugin';

export { IGpulayer } from './tokens';

export default [clientPlugin, panelPlugin, jobPlugin, attachPlugin];
