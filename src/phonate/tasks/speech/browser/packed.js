// What is in the page, compressed.

// The bytes of the element `packed-NAME`, which holds gzip in base64. The element is emptied.
export async function unpacked(name) {
  const element = document.getElementById(`packed-${name}`), text = atob(element.textContent);
  element.textContent = "";
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export const unpackedJson = async name => JSON.parse(new TextDecoder().decode(await unpacked(name)));
