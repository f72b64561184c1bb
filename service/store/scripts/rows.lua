#!lua flags=no-writes
-- The blocks of a stream that have rows in a span, and its head if that is wanted, as of one moment.
-- KEYS: heads, tail
-- ARGV: position of the first row, position after the last row, field of the stream's position, and
--       that of the settled part of its head where the head is wanted
local start, stop = tonumber(ARGV[1]), tonumber(ARGV[2])

local function first_of(element)
  local a, b, c, d, e, f = string.byte(element .. '\0\0\0\0\0\0\0\0\0\0\0', 6, 11)
  return a + 256 * (b + 256 * (c + 256 * (d + 256 * (e + 256 * f))))
end

local function begin_of(number) return first_of(redis.call('LINDEX', KEYS[2], number)) end

-- Number of the first element that begins at a position or later: they begin in order. It is
-- between two numbers.
local function first_from(position, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if begin_of(middle) < position then low = middle + 1 else high = middle end
  end
  return low
end

local elements = {}
local after = redis.call('LLEN', KEYS[2])
-- Most spans end with the tail.
if after > 0 and begin_of(-1) >= stop then after = first_from(stop, 0, after - 1) end
if after > 0 then
  -- Each has a row of its own, at least; most have no other.
  local first = math.max(after - (stop - start), 0)
  if begin_of(first) < start then first = first_from(start + 1, first + 1, after) - 1 end
  -- And the one after them, which may begin before: a damaged one does not say so, and would leave
  -- rows standing that it took the place of.
  elements = redis.call('LRANGE', KEYS[2], first, after)
end
-- The last block may lie beside the position, before its length (u16).
local position = redis.call('HGET', KEYS[1], ARGV[3])
local low, high = string.byte(position or '', -2, -1)
if high then
  local block = string.sub(position, -2 - low - 256 * high, -3)
  if #block > 0 and first_of(block) < stop then elements[#elements + 1] = block end
end
return {elements, ARGV[4] and {redis.call('HGET', KEYS[1], ARGV[4]), position} or {}}
