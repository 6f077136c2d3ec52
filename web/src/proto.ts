/** What a file of Protocol Buffers holds, one field after the other. */

export interface Field {
  number: number;
  /** Of a varint or a fixed number. */
  value: number;
  /** Of text, bytes, or a message inside. */
  bytes: Uint8Array;
}

const NOTHING = new Uint8Array(0);

export function* fields(message: Uint8Array): Generator<Field> {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  let at = 0;

  function varint(): number {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = view.getUint8(at++);
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }

  while (at < message.length) {
    const key = varint();
    const field: Field = { number: Math.floor(key / 8), value: 0, bytes: NOTHING };
    switch (key % 8) {
      case 0:
        field.value = varint();
        break;
      case 1:
        at += 8; // doubles: none that we read
        break;
      case 2: {
        const length = varint();
        field.bytes = message.subarray(at, at + length);
        at += length;
        break;
      }
      case 5:
        field.value = view.getFloat32(at, true);
        at += 4;
        break;
      default:
        throw new Error("the tokenizer is damaged");
    }
    yield field;
  }
}
