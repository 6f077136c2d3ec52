/** Strings of bytes and a number for each, found by their prefixes. */

export class Trie {
  /** The node behind a node and a byte. */
  private readonly next = new Map<number, number>();
  private readonly numbers: number[] = [-1];

  static readonly root = 0;

  add(key: Uint8Array, number: number): void {
    let node = Trie.root;
    for (const byte of key) {
      const step = node * 256 + byte;
      let behind = this.next.get(step);
      if (behind === undefined) {
        behind = this.numbers.push(-1) - 1;
        this.next.set(step, behind);
      }
      node = behind;
    }
    this.numbers[node] = number;
  }

  /** The node behind a node and a byte; -1 if there is none. */
  step(node: number, byte: number): number {
    return this.next.get(node * 256 + byte) ?? -1;
  }

  /** The number of the string that ends in a node; -1 if none does. */
  at(node: number): number {
    return this.numbers[node];
  }

  /** The number of a string; -1 if it is not there. */
  find(key: Uint8Array): number {
    let node: number = Trie.root;
    for (const byte of key) {
      node = this.step(node, byte);
      if (node < 0) return -1;
    }
    return this.at(node);
  }

  /** The length of the longest string that the text has at a position; 0 if none. */
  longest(text: Uint8Array, from: number): number {
    let found = 0;
    let node: number = Trie.root;
    for (let at = from; at < text.length; at++) {
      node = this.step(node, text[at]);
      if (node < 0) break;
      if (this.at(node) >= 0) found = at + 1 - from;
    }
    return found;
  }
}
