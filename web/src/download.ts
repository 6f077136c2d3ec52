/** Files of the site, with word of how much has arrived. */

import { settings } from "./settings.js";

export class Downloads {
  private readonly total: number;
  private arrived = 0;

  /**
   * @param names - all that will be downloaded.
   * @param tell - is called with the share that has arrived, 0 to 1.
   */
  constructor(
    names: readonly string[],
    private readonly tell: (share: number) => void,
  ) {
    this.total = names.reduce((sum, name) => sum + settings.files[name], 0);
  }

  /** A response that counts while it is read. */
  async open(name: string, type: string): Promise<Response> {
    const response = await fetch(name);
    if (!response.ok || !response.body) {
      throw new Error(`${name} cannot be loaded: the server answers ${response.status}`);
    }
    const counted = new TransformStream<Uint8Array, Uint8Array>({
      transform: (chunk, controller) => {
        this.arrived += chunk.length;
        this.tell(Math.min(1, this.arrived / this.total));
        controller.enqueue(chunk);
      },
    });
    const headers = { "Content-Type": type };
    return new Response(response.body.pipeThrough(counted), { headers });
  }

  async bytes(name: string): Promise<Uint8Array> {
    const response = await this.open(name, "application/octet-stream");
    return new Uint8Array(await response.arrayBuffer());
  }
}
