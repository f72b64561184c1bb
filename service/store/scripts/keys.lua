-- Store API keys, unless any changed since they were read.
-- KEYS: hash of all keys, their version
-- ARGV: the version as it was read, empty without one; then for each key its id and its record
-- Answers 1, or 0 where they are to be read again.
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('INCR', KEYS[2])
return 1
