// Ground truth: the rings of GeoJSON as one path in level-0 pixels.

interface GeoJson {
  type?: string;
  features?: unknown[];
  geometry?: unknown;
  geometries?: unknown[];
  coordinates?: unknown;
}

type Ring = [number, number][];

/**
 * The outlines of all polygons, however deep they lie; points and lines enclose nothing.
 * Coordinates count from an origin, as QuPath's do on slides that state their bounds.
 */
export function outlinePath(found: unknown, [left, top]: readonly [number, number]): Path2D {
  const path = new Path2D();
  for (const ring of rings(found)) {
    ring.forEach(([x, y], at) =>
      at ? path.lineTo(left + x, top + y) : path.moveTo(left + x, top + y),
    );
    path.closePath();
  }
  return path;
}

function rings(found: unknown): Ring[] {
  if (Array.isArray(found)) return found.flatMap(rings);
  const { type, features, geometry, geometries, coordinates } = (found ?? {}) as GeoJson;
  if (type === "FeatureCollection") return rings(features);
  if (type === "Feature") return rings(geometry);
  if (type === "GeometryCollection") return rings(geometries);
  if (type === "Polygon") return coordinates as Ring[];
  return type === "MultiPolygon" ? (coordinates as Ring[][]).flat() : [];
}
