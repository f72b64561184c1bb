#!lua flags=no-writes
-- Both parts of a stream's head, and the elements of its tail that have rows in a span, as of one
-- moment.
-- KEYS: heads, tail
-- ARGV: the two fields of the head, position of the first row, position after the last row
local start, stop = tonumber(ARGV[3]), tonumber(ARGV[4])

-- Number of the first element that begins at a position or later: they begin in order.
local function first_from(position)
  local low, high = 0, redis.call('LLEN', KEYS[2])
  while low < high do
    local middle = math.floor((low + high) / 2)
    local element = redis.call('LINDEX', KEYS[2], middle)
    local a, b, c, d, e, f = string.byte(element .. '\0\0\0\0\0\0\0\0\0\0\0', 6, 11)
    local begins = a + 256 * (b + 256 * (c + 256 * (d + 256 * (e + 256 * f))))
    if begins < position then low = middle + 1 else high = middle end
  end
  return low
end

local head = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local first, last = first_from(start + 1) - 1, first_from(stop) - 1
local elements = {}
if last >= 0 then elements = redis.call('LRANGE', KEYS[2], math.max(first, 0), last) end
return {head[1], head[2], elements}
