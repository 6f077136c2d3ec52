/**
 * A TFLite file of a packed one, whose matrices are stored in 8 bits; what is not packed remains as it
 * is. `pipelines/translators/packed_model.py` tells what is where.
 */

const PACKED = "RELPACK1";

interface Head {
  /** Of the TFLite file, in bytes. */
  size: number;
  /** Where each begins, its rows and its columns. */
  matrices: [offset: number, rows: number, columns: number][];
}

export function unpack(content: Uint8Array): Uint8Array {
  const decoder = new TextDecoder();
  if (decoder.decode(content.subarray(0, PACKED.length)) !== PACKED) return content;
  const start = PACKED.length + 4;
  const headEnd = start + new DataView(content.buffer).getUint32(PACKED.length, true);
  const { size, matrices }: Head = JSON.parse(decoder.decode(content.subarray(start, headEnd)));
  const numbers = matrices.reduce((sum, [, rows, columns]) => sum + rows * columns, 0);
  const allRows = matrices.reduce((sum, [, rows]) => sum + rows, 0);
  const restEnd = headEnd + size - 4 * numbers;
  const scales = new Float32Array(content.slice(restEnd, restEnd + 4 * allRows).buffer);
  const integers = new Int8Array(content.buffer, restEnd + 4 * allRows, numbers);
  const file = new Uint8Array(size);
  let [from, to, row, next] = [headEnd, 0, 0, 0];
  for (const [offset, rows, columns] of matrices) {
    file.set(content.subarray(from, from + offset - to), to);
    from += offset - to;
    const matrix = new Float32Array(file.buffer, offset, rows * columns);
    for (let i = 0; i < matrix.length; row++) {
      for (const end = i + columns; i < end; i++) matrix[i] = integers[next++] * scales[row];
    }
    to = offset + matrix.byteLength;
  }
  file.set(content.subarray(from, restEnd), to);
  return file;
}
