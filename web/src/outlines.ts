// Ground truth: the polygons of a GeoJSON file as one path in level-0 pixels.

interface GeoJson {
  type?: string;
  features?: unknown[];
  geometry?: unknown;
  geometries?: unknown[];
  coordinates?: unknown;
}

type Ring = [number, number][];

/**
 * Return the outlines of all polygons, however deeply nested. Points and lines are ignored.
 * Coordinates count from an origin, as in QuPath for slides that state their bounds.
 */
export function makeOutlinePath(found: unknown, [left, top]: readonly [number, number]): Path2D {
  const path = new Path2D();
  for (const ring of findRings(found)) {
    ring.forEach(([x, y], at) =>
      at ? path.lineTo(left + x, top + y) : path.moveTo(left + x, top + y),
    );
    path.closePath();
  }
  return path;
}

function findRings(found: unknown): Ring[] {
  if (Array.isArray(found)) return found.flatMap(findRings);
  const { type, features, geometry, geometries, coordinates } = (found ?? {}) as GeoJson;
  if (type === "FeatureCollection") return findRings(features);
  if (type === "Feature") return findRings(geometry);
  if (type === "GeometryCollection") return findRings(geometries);
  if (type === "Polygon") return coordinates as Ring[];
  return type === "MultiPolygon" ? (coordinates as Ring[][]).flat() : [];
}
