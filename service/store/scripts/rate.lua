#!lua
-- Count a request within a sliding window: of the window before, the share that is still in it.
-- KEYS: a hash of the window's number, its count and that of the one before
-- ARGV: requests for each window, window s
-- Answers 0, or the seconds after which the next one may come; what is refused does not count.
local time = redis.call('TIME')
local at = tonumber(time[1]) + tonumber(time[2]) / 1e6
local amount, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local number = math.floor(at / window)
local stored = redis.call('HMGET', KEYS[1], 'number', 'count', 'before')
local count, before = 0, 0
if tonumber(stored[1]) == number then
  count, before = tonumber(stored[2]), tonumber(stored[3])
elseif tonumber(stored[1]) == number - 1 then
  before = tonumber(stored[2])
end
local left = number + 1 - at / window
if count + before * left + 1 > amount then
  local windows
  if count < amount then
    windows = left - (amount - 1 - count) / before
  else
    windows = left + 1 - (amount - 1) / count
  end
  return math.min(math.max(1, math.ceil(windows * window)), window)
end
redis.call('HSET', KEYS[1], 'number', number, 'count', count + 1, 'before', before)
redis.call('EXPIRE', KEYS[1], 2 * window)
return 0
